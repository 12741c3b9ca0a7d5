# SPDX-License-Identifier: Apache-2.0
"""What Shoal does to a cluster besides answering its scheduler: all of it opt-in, bounded and led by one."""

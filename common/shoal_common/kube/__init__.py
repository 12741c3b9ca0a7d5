# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's default profile, exact: one file per plugin, the profile that runs them, node selection.

`profile.evaluate` answers for one pod and one snapshot; `selection` has sampling and tie rules; `volcano` the
node scores of Volcano. The reference is kubernetes v1.36; `docs/scorers-kube.md` says what is out of scope.
"""

"""An embedded Kubernetes API server: one process, in memory, loopback only.

It behaves as kube-apiserver 1.36 does wherever a DRA driver, its clients or kubectl can notice:
versions and conflicts, watches, subresources, patches, server-side apply, finalizers, custom
resources, and the validation of claims, slices, classes and pods. It has no authentication, no
authorization and no admission webhooks, and it forgets everything when it stops.

Layers, bottom up: `store` (records and their history), `shapes` and `managed*` (field ownership),
`patches`, `validate` (rules of the kinds), `kinds` (defaults and life cycle of each kind),
`registry` (the verbs on objects), `watch`, `tables`, `discovery`, and `server` (HTTP).
"""

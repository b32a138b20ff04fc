"""Embedded Kubernetes API server, so that programs and tests need no cluster: one process.

It exists because the driver depends on what a server refuses, orders and tells on, and a real one
needs root, etcd and half a minute. It behaves as kube-apiserver 1.36 does wherever a DRA driver,
its clients or kubectl can notice: versions and conflicts, watches, subresources, patches,
server-side apply, finalizers, custom resources, discovery and OpenAPI, and the rules that a driver
can break when it writes claims, slices and pods. ``tests/sim/conformance`` holds it to the real
one.

It will never do: authentication, authorization, admission webhooks and policies, quotas, the
validation of what only users write (CEL of selectors, node selectors, syntax of names in specs),
several versions of Kubernetes, storage on disk (it forgets everything when it stops), or the work
of kinds whose controllers do not run here, beyond storing them.
"""

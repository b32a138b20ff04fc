"""Embedded Kubernetes API server, so that programs and tests need no cluster: one process.

It exists because the driver depends on what a server refuses, orders and tells on, and a real one
needs root, etcd and half a minute. It behaves as kube-apiserver 1.36 does wherever a DRA driver,
its clients or kubectl can notice: versions and conflicts, watches, subresources, patches,
server-side apply, finalizers, custom resources, discovery, and the few rules that a program of ours
may run into. ``tests/sim/conformance`` holds it to the real one.

It will never do: authentication, authorization and reviews of rights, admission webhooks and
policies, quotas, validation of names, fields and schemas, protobuf but for what kubectl creates,
OpenAPI schemas, deletion in the foreground, several versions of Kubernetes, storage on disk (it
forgets everything when it stops), or the work of kinds whose controllers do not run here, beyond
storing them.
"""

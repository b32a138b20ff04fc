"""Rules that our programs can break, worded as kube-apiserver words them.

Every check gives a list of `Cause`; nothing here changes an object or reads a store.
"""

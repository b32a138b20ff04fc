"""Forms of requests and answers: bodies, patches, tables, lists, watches."""

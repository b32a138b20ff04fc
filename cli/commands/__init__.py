"""Commands of kubectl mig: a module each, with a function ``run`` that returns an exit code.

A new command is a module here, and its command line in ``cli/program.py:_COMMANDS``; ``run`` is
given a Session and the options, by their names. ``profiles.py`` is a short one to begin from.

==============================  ===================================================================
``session.out``                 of ``cli.output``: ``line``, ``table``, ``paragraph``; ``json``, if
                                ``is_json``; ``good``, ``odd``, ``bad``, ``bold``, ``dim`` colour
``Exit``, ``CliError``          of ``cli.output``: exit codes, and the error that ends a command
``read_site(session)``          of ``cli.facts``: nodes, GPUs, and who holds what (``cli.site``)
``read_facts(session, ...)``    of ``cli.facts``: these, and claims, pods, classes and events
``evaluator()``                 of ``cli.session``: CEL selectors, in a process of its own
``session.api``                 of ``dra.kube.client``: whatever else is read, and what is written
``session.namespace``           that of ``-n``, or of the kubeconfig's context
``mig(...)`` on ``world``       fixtures of ``tests/cli``: a command line on a constructed cluster
==============================  ===================================================================
"""

"""The command line: ``main`` names each command's module and function, ``flags`` and ``run_flags`` what it takes."""

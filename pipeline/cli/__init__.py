"""The command line: main finds the module of a command, and each command is one module; tables/ prints theirs."""

"""The command line: main runs a call, commands names the module of each command. Commands lie by what they
take: a data recipe (corpus), a finished output (output), a training recipe (training); demo, completion,
submit and jobs lie here."""

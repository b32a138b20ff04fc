"""The program around the commands: arguments, sessions, output, exits."""

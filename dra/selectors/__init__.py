"""CEL selectors evaluated against virtual devices. Imports the CEL runtime: no daemon of a node."""

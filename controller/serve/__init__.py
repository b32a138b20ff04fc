"""Service of pods and claims: rules that say what is done next for each."""

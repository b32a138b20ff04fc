"""Page of the check, against what the check prints."""

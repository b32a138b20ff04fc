"""Objects as the mirrors keep them: cut down to what the controller reads."""

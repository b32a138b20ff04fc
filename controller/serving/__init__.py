"""Service of waiting pods: examined, decided, asked about, told why they wait, and tried again."""

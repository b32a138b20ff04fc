"""Waiting claims and pods: who is served next, who rests."""

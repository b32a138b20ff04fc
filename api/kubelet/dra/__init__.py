"""Kubelet's protocol with DRA plugins: claims prepared and unprepared."""

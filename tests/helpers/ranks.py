"""Ranks that count how often they are compared: what an order costs, on any machine."""

from __future__ import annotations

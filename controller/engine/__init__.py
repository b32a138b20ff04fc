"""The engine, which turns events into work while this process leads."""

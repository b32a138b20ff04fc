"""Border: sessions with the library, and the clients that hold a GPU."""

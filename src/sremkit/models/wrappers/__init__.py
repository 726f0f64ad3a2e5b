"""Models made of another backbone."""

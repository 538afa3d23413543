"""The vocabulary: vectors, events and commands, servers and local halves, problems, errors."""

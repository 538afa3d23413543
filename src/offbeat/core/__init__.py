"""The vocabulary: vectors, events and commands, servers and local trainers, problems, errors."""

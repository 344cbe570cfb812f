"""EpisodeWriter and StepWriter: gather steps, and write each of them exactly once."""

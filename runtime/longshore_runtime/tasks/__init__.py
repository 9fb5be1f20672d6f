"""Built-in tasks: prompts, answers, scores and demonstrations that are generated, so that no data set is needed."""

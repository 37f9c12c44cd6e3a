"""Plans that serve a transformer (--mode inference): questions and answers, plan files, error bars, comparisons."""

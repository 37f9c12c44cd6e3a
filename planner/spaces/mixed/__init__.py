"""Plans over several kinds of devices: questions and answers, plan files, what a change of plan or hardware would do."""

"""How fast private gradients and solvers are, beside plain ones and the peers."""

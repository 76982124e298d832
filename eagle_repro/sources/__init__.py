"""Where things come from: model pairs, their weights, question sets. No torch maths."""

"""Longshore's in-pod runtime: the Ray driver, its actors, and the engines and trainers behind them."""

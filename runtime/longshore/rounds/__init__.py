"""How a round's decisions are carried out: one protocol without I/O for the runtime, the simulator and the tests."""

"""The simulator against published figures: calibrated on baselines, compared with everything else.

`compare(paper, Published.of_rows(rows))`, where `rows` is the parsed `PUBLISHED_FILE`.
"""

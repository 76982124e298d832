"""Numbers: clocks and fair order, records that survive a kill, the bench sheet, statistics, ceilings and costs."""

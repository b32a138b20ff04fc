"""Installation by the chart, and the cluster that tests stand on."""

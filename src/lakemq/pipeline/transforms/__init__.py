"""Questions to the lake: functions from DataFrames to a DataFrame, on any Spark session, Connect among them."""

from lakemq.pipeline.transforms.cost import app_cost
from lakemq.pipeline.transforms.deliveries import deliveries
from lakemq.pipeline.transforms.duplicates import duplicates
from lakemq.pipeline.transforms.failures import dead_letter_report, retry_report
from lakemq.pipeline.transforms.hot_keys import hot_keys
from lakemq.pipeline.transforms.lag import lag_history
from lakemq.pipeline.transforms.latency import end_to_end_latency, hop_latency
from lakemq.pipeline.transforms.rates import rates
from lakemq.pipeline.transforms.trace import timeline
from lakemq.pipeline.transforms.trace_text import as_json, tree

__all__ = [
    "app_cost",
    "as_json",
    "dead_letter_report",
    "deliveries",
    "duplicates",
    "end_to_end_latency",
    "hop_latency",
    "hot_keys",
    "lag_history",
    "rates",
    "retry_report",
    "timeline",
    "tree",
]

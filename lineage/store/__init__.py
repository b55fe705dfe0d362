"""The Delta tables under OUT/lineage: tables (schemas) → write → shuffle → delta (commits) →
lookup, views, sql (questions).
"""

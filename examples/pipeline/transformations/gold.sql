-- Gold: what each item brought in. Computed anew from silver in each run.
CREATE MATERIALIZED VIEW gold_revenue AS
SELECT item, count(*) AS orders, sum(quantity) AS pieces, sum(quantity * price) AS revenue
FROM silver_orders
GROUP BY item;

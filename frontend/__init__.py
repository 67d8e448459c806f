"""The pages: server-rendered, live by server-sent events, every picture by Plotly."""

// Draws the server's figures with Plotly: in the style sheet's colours, times in the viewer's zone.
//
// A mark whose last value in customdata is an address of this server leads there.

import { isOwnPath } from "./addresses.js";
import { released } from "./press.js";
import { askJson } from "./requests.js";

let loading = null;

const PLOTLY_MS = 120_000; // Half a megabyte over a slow line.

/** Plotly, loaded when the first picture needs it. */
function plotly(url) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const giveUp = () => {
      loading = null;
      script.remove();
      reject(new Error("Plotly could not be loaded"));
    };
    script.src = url;
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", giveUp);
    document.head.append(script);
    setTimeout(() => { if (!window.Plotly) giveUp(); }, PLOTLY_MS);
  });
  return loading;
}

const NARROW_PX = 520; // The buttons would cover the legend.
const FITTING_MS = 100;
const CONFIG = {
  displaylogo: false,
  // Named one by one: nothing here may send a figure anywhere.
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
};

const COLOR = /^var\((--[\w-]+)\)$/;
const MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

/** A figure with names of colours and points in time resolved for this page. */
function coloured(part, style) {
  if (typeof part === "string") {
    const name = COLOR.exec(part);
    if (name) return style.getPropertyValue(name[1]).trim();
    return MOMENT.test(part) ? local(part) : part;
  }
  if (Array.isArray(part)) return part.map((item) => coloured(item, style));
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([key, item]) => [key, coloured(item, style)]));
}

/** As the viewer's clock showed it; Plotly itself knows no zones. */
function local(iso) {
  const moment = new Date(iso);
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, -1).replace("T", " ");
}

/** The layout of a narrow chart: without titles of axes, and with room for a legend of its own. */
function narrowed(layout, entries) {
  const title_px = (layout.annotations ?? []).some(isAbove) ? TITLE_PX : 0;
  const top_px = Math.ceil(entries / LEGEND_COLUMNS) * LEGEND_ROW_PX + LEGEND_GAP_PX + title_px;
  const extra_px = top_px - layout.margin.t;
  const narrow = { ...layout, showlegend: false, margin: { ...layout.margin, t: top_px } };
  if (layout.height) narrow.height = layout.height + extra_px;
  for (const name of Object.keys(layout).filter((key) => AXIS.test(key))) {
    const { nticks } = layout[name];
    // An axis of names shows each of them.
    narrow[name] = { ...layout[name], title: { text: "" }, ...(nticks ? { nticks: Math.min(nticks, 4) } : {}) };
  }
  return narrow;
}

/** Whether an annotation stands above all panels, where the legend is too. */
function isAbove({ y, yref, yanchor }) {
  return yref === "paper" && y >= 1 && yanchor === "bottom";
}

const DASHES_PX = 220; // The room of all dashes, so that neighbours keep apart.

/** The traces of a narrow chart: dashes that mark bars are no wider than those. */
function thinned(data) {
  return data.map((trace) => {
    if (trace.marker?.symbol !== "line-ew-open") return trace;
    const size = Math.max(3, Math.min(trace.marker.size, DASHES_PX / trace.x.length));
    return { ...trace, marker: { ...trace.marker, size } };
  });
}

// Plotly's own legend prints its entries over one another where the axis leaves it little room.
const LEGEND_COLUMNS = 2;
const LEGEND_ROW_PX = 20; // As the style sheet has it.
const LEGEND_GAP_PX = 12;
const TITLE_PX = 18; // Of a panel; it stands in the margin.
const SIGNS = { x: "✖", "triangle-up": "▲", diamond: "◆", star: "★", "star-open": "☆", "line-ew-open": "–", "line-ns-open": "|" };

function named(data, layout) {
  return layout.showlegend === false ? [] : data.filter(({ name, showlegend, visible }) => name && showlegend !== false && visible !== "legendonly");
}

/** The legend of a narrow chart, above its picture. */
function legendOf(traces, style) {
  const list = document.createElement("ul");
  list.className = "chart-legend";
  list.setAttribute("aria-hidden", "true");
  for (const { name, type, marker, line, fillcolor } of traces) {
    const entry = document.createElement("li");
    const sign = document.createElement("span");
    const symbol = [marker?.symbol].flat()[0];
    sign.textContent = SIGNS[symbol] ?? (type === "bar" || fillcolor ? "■" : "—");
    sign.style.color = coloured([marker?.color ?? line?.color].flat()[0] ?? "", style);
    entry.append(sign, name);
    list.append(entry);
  }
  return list;
}

const AXIS = /^[xy]axis\d*$/;

function themed(layout, style) {
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--line") };
  const themedLayout = {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, size: 12.5, color: color("--quiet") },
    hoverlabel: {
      bgcolor: color("--card"),
      bordercolor: color("--line"),
      font: { family: style.fontFamily, size: 13, color: color("--text") },
      align: "left",
    },
    modebar: { color: color("--quiet"), activecolor: color("--accent"), bgcolor: "rgba(0,0,0,0)" },
  };
  for (const name of Object.keys(layout).filter((key) => AXIS.test(key))) {
    themedLayout[name] = { ...axis, ...layout[name] };
  }
  return themedLayout;
}

export class Chart {
  #element;
  #url;
  #plotly;
  #figure = null;
  #asked = 0; // Number of the last fetch of the figure.
  #shown = 0; // Number of the fetch that is drawn.
  #legend = null; // Of a narrow chart.
  #leads = false; // Whether the click handler is set.
  #width = 0; // Of the element, as it was drawn into last.
  #fitting = 0; // The timer of the next drawing into another width.

  constructor(element, url, plotlyUrl) {
    this.#element = element;
    this.#url = url;
    this.#plotly = plotlyUrl;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
    // Plotly's own fitting knows no narrow chart, and keeps no height.
    new ResizeObserver(() => this.#fit()).observe(element);
  }

  /** The figure is at another address from the next refresh on. */
  moveTo(url) {
    this.#url = url;
  }

  /**
   * Fetch the figure and draw it; an answer that has not changed comes from the browser's cache, and
   * one that comes after the answer to a later request is not drawn any more.
   */
  async refresh() {
    this.#asked += 1;
    const number = this.#asked;
    const figure = await askJson(this.#url);
    if (number > this.#shown) {
      this.#shown = number;
      this.#figure = figure;
    }
    await this.#draw();
  }

  /** Draw the figure again once the element has kept another width for a moment. */
  #fit() {
    clearTimeout(this.#fitting);
    if (this.#element.clientWidth === this.#width) return;
    this.#fitting = setTimeout(() => this.#draw(), FITTING_MS);
  }

  async #draw() {
    // Where the element is hidden it has no size to draw into.
    if (this.#figure === null || this.#element.offsetParent === null) return;
    let Plotly;
    try {
      Plotly = await plotly(this.#plotly);
    } catch {
      this.#element.classList.add("failed");
      this.#element.textContent = "The chart could not be loaded; the table below has the numbers.";
      return;
    }
    await released();
    const style = getComputedStyle(document.body);
    const { data, layout } = this.#figure;
    this.#width = this.#element.clientWidth;
    const isNarrow = this.#width < NARROW_PX;
    const config = { ...CONFIG, displayModeBar: isNarrow ? false : "hover" };
    const entries = isNarrow ? named(data, layout) : [];
    const fitted = isNarrow ? narrowed(layout, entries.length) : layout;
    const traces = isNarrow ? thinned(data) : data;
    await Plotly.react(this.#element, coloured(traces, style), themed(coloured(fitted, style), style), config);
    this.#legend?.remove();
    this.#legend = isNarrow ? legendOf(entries, style) : null;
    if (this.#legend) this.#element.append(this.#legend);
    if (!this.#leads) this.#lead();
    this.#element.dataset.drawn = String(Number(this.#element.dataset.drawn ?? 0) + 1);
  }

  #lead() {
    this.#leads = true;
    this.#element.on("plotly_click", ({ points }) => {
      const address = leadsTo(points);
      if (address) location.assign(address);
    });
    this.#element.on("plotly_hover", ({ points }) => {
      this.#element.classList.toggle("leads", leadsTo(points) !== null);
    });
    this.#element.on("plotly_unhover", () => this.#element.classList.remove("leads"));
  }
}

function leadsTo(points) {
  for (const { customdata } of points ?? []) {
    const last = Array.isArray(customdata) ? customdata.at(-1) : null;
    if (isOwnPath(last)) return last;
  }
  return null;
}

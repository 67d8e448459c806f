// Draws the server's figures with Plotly, in the style sheet's colours.

let loading = null;

/** Plotly, loaded when the first picture needs it. */
function plotly(url) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      loading = null;
      reject(new Error("Plotly could not be loaded"));
    });
    document.head.append(script);
  });
  return loading;
}

const NARROW_PX = 520; // The buttons would cover the legend.
const CONFIG = {
  displaylogo: false,
  responsive: true,
  // Named one by one: nothing here may send a figure anywhere.
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
};

/** A figure with the names of colours replaced by what they are now. */
function coloured(part, style) {
  if (typeof part === "string") {
    const name = /^var\((--[\w-]+)\)$/.exec(part);
    return name ? style.getPropertyValue(name[1]).trim() : part;
  }
  if (Array.isArray(part)) return part.map((item) => coloured(item, style));
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([key, item]) => [key, coloured(item, style)]));
}

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
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    themedLayout[name] = { ...axis, ...layout[name] };
  }
  return themedLayout;
}

export class Chart {
  #element;
  #url;
  #plotly;
  #figure = null;

  constructor(element, url, plotlyUrl) {
    this.#element = element;
    this.#url = url;
    this.#plotly = plotlyUrl;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Fetch the figure and draw it; an answer that has not changed comes from the browser's cache. */
  async refresh() {
    const response = await fetch(this.#url, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`${this.#url} answered ${response.status}`);
    this.#figure = await response.json();
    await this.#draw();
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
    const style = getComputedStyle(document.body);
    const { data, layout } = this.#figure;
    const config = { ...CONFIG, displayModeBar: this.#element.clientWidth < NARROW_PX ? false : "hover" };
    await Plotly.react(this.#element, coloured(data, style), themed(coloured(layout, style), style), config);
    this.#element.dataset.drawn = String(Number(this.#element.dataset.drawn ?? 0) + 1);
  }
}

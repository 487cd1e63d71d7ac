// Draws every chart of the page from its specification, in the colours of the theme, again when the theme changes.
"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const palettes = {
    light: ["#0072b2", "#d98c00", "#00805f", "#c2609a", "#b84a00", "#4aa3d8", "#7a6212", "#767b84"],
    dark: ["#4aa8e8", "#f0b43c", "#2fc298", "#e59cc8", "#ff8a52", "#9bd6f8", "#cdb25c", "#a4aab4"],
  };
  const drawn = new Map();

  const config = () => {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const [text, quiet, line] = [read("--text"), read("--quiet"), read("--line")];
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: null },
      range: { category: palettes[dark.matches ? "dark" : "light"] },
      axis: {
        labelColor: quiet, titleColor: text, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: 500,
        labelFontSize: 12, titleFontSize: 12, labelOverlap: true, titlePadding: 8,
      },
      legend: { labelColor: text, titleColor: text, labelFontSize: 12, symbolType: "square", columns: innerWidth < 700 ? 2 : 6, orient: "top", offset: 8 },
      bar: { cornerRadius: 1 },
    };
  };

  const draw = async (place) => {
    drawn.get(place)?.finalize();
    const options = {
      renderer: "svg", actions: false, ast: true, defaultStyle: false, config: config(),
      tooltip: { theme: "custom", disableDefaultStyle: true },
    };
    const spec = { ...specs[place.dataset.chart], autosize: { type: "fit-x", contains: "padding" } };
    const made = await vegaEmbed(place, spec, options);
    drawn.set(place, made);
    place.dataset.drawn = "true";
  };

  const places = [...document.querySelectorAll("[data-chart]")];
  const drawAll = () => places.filter((place) => place.dataset.near).forEach(draw);
  // A report may have dozens of charts: each is drawn when it comes near, or when the page is printed.
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      watch.unobserve(entry.target);
      entry.target.dataset.near = "true";
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  places.forEach((place) => watch.observe(place));
  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => places.filter((place) => !place.dataset.near).forEach(draw));
})();

(() => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const folds = document.getElementById("folds");

  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");

  // "$name" anywhere in a figure is the theme's colour of that name
  function coloured(value, style) {
    if (typeof value === "string") return value[0] === "$" ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    return value;
  }

  function draw(id) {
    const place = document.getElementById(id);
    const style = getComputedStyle(root);
    const figure = coloured(figures[id], style);
    figure.layout.font.family = getComputedStyle(document.body).fontFamily;
    return Plotly.react(place, figure.data, figure.layout, { displaylogo: false, responsive: true, displayModeBar: false });
  }

  const drawAll = () => Promise.all(Object.keys(figures).map(draw)).then(() => { root.dataset.drawn = theme(); });

  function label() {
    button.textContent = theme() === "dark" ? "light" : "dark";
  }

  button.hidden = folds.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    label();
    drawAll();
  });
  dark.addEventListener("change", () => { label(); drawAll(); });

  folds.addEventListener("click", () => {
    const all = [...document.querySelectorAll("details")];
    const open = all.some((fold) => !fold.open);
    all.forEach((fold) => { fold.open = open; });
    folds.textContent = open ? "fold all" : "unfold all";
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));

  function copied(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    return Promise.reject(new Error("no clipboard"));
  }
  document.querySelectorAll(".copy").forEach((copy) => {
    copy.hidden = false;
    copy.addEventListener("click", () => {
      copied(copy.dataset.copy).then(
        () => { copy.textContent = "copied"; },
        () => { // not allowed here: select it instead, so that the usual keys copy it
          getSelection().selectAllChildren(copy.parentElement.querySelector("code"));
          copy.textContent = "selected";
        },
      );
      setTimeout(() => { copy.textContent = "copy"; }, 1600);
    });
  });

  label();
  if (Object.keys(figures).length) requestAnimationFrame(() => setTimeout(drawAll));
  else root.dataset.drawn = theme();
})();

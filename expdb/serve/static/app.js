// Updates pages when the database changes, draws plots, loads parts of pages on demand, and handles
// keys. There is no build step: browsers run this file directly.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

async function get(url) {
  const response = await fetch(url, { credentials: "same-origin" });
  if (!response.ok) throw new Error((await response.text()).trim() || response.statusText);
  return response;
}

// -- live regions --------------------------------------------------------------------------------

// Replace the contents of regions with `data-live` by the current contents from the server.
async function refresh() {
  const regions = $$("[data-live]").filter((region) => !isInUse(region));
  if (!regions.length) return;
  const text = await (await get(location.href)).text();
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const region of regions) {
    const fresh = page.getElementById(region.id);
    if (fresh && fresh.innerHTML !== region.innerHTML) {
      const selected = $$("[data-row]", region).indexOf($(".selected", region));
      region.replaceChildren(...fresh.childNodes);
      $$("[data-row]", region)[selected]?.classList.add("selected");
    }
  }
}

// A region with the focus or with selected text is not replaced.
function isInUse(region) {
  const selection = getSelection();
  const hasSelection = selection && !selection.isCollapsed && region.contains(selection.anchorNode);
  return hasSelection || (region.contains(document.activeElement) && document.activeElement !== document.body);
}

function follow() {
  const url = document.body.dataset.events;
  const status = $("#live");
  if (!url || !status) return;
  let wanted = false, running = false, pause = 500;
  const run = async () => {
    if (running || !wanted || document.hidden) return;
    running = true;
    wanted = false;
    const began = performance.now();
    try {
      await refresh();
      document.dispatchEvent(new Event("expdb:refresh"));
    } catch (error) {
      status.textContent = "cannot refresh";
    }
    // Refresh slow pages less often.
    pause = Math.max(500, 10 * (performance.now() - began));
    setTimeout(() => { running = false; run(); }, pause);
  };
  let isFirst = true;
  const events = new EventSource(url);
  events.onopen = () => { status.textContent = "live"; status.classList.add("on"); };
  events.onerror = () => { status.textContent = "disconnected"; status.classList.remove("on"); };
  events.onmessage = () => {
    if (isFirst) { isFirst = false; return; }  // the page has just been loaded
    wanted = true;
    run();
  };
  setInterval(() => { wanted = true; run(); }, 5000);  // ages change without an event
  document.addEventListener("visibilitychange", run);
  addEventListener("pagehide", () => events.close());
}

// -- plots ---------------------------------------------------------------------------------------

const COLOURS = ["#2f6fd0", "#c8452f", "#2e9950", "#9a5fc0"];

// Times on the axis for each distance of ticks: the usual label, and the longer labels of the first
// tick and of the first tick of a year, a day and a minute (uPlot's format).
const DATE = "\n{YYYY}-{MM}-{DD}";
const TIMES = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [2419200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DATE, null, "\n{MM}-{DD}", null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DATE, null, "\n{MM}-{DD}", null, null, null, 1],
];

function draw(box, xs, plots, isTime) {
  const style = getComputedStyle(document.documentElement);
  const axis = { stroke: style.getPropertyValue("--dim"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
  box.replaceChildren();
  for (const plot of plots) {
    const figure = make("figure", {}, make("figcaption", { textContent: plot.title }));
    figure.setAttribute("role", "group");
    figure.setAttribute("aria-label", plot.title);
    box.append(figure);
    const options = {
      width: Math.min(440, Math.max(260, box.clientWidth - 4)), height: 170,
      scales: { x: { time: isTime } }, tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
      axes: [isTime ? { ...axis, values: TIMES } : axis, { ...axis, size: 60 }],
      series: [{ label: isTime ? "time" : "x", value: isTime ? "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" : undefined }, ...plot.series.map((series, index) => ({
        label: series.name, stroke: COLOURS[index % COLOURS.length], width: 1.5, spanGaps: true,
        points: { show: series.values.filter((value) => value !== null).length < 60, size: 4 },
      }))],
    };
    new uPlot(options, [xs, ...plot.series.map((series) => series.values)], figure);
  }
  if (!plots.length) box.append(make("p", { className: "note", textContent: "No data to plot." }));
}

function history() {
  const box = $("[data-history]");
  if (!box) return;
  let seconds = 3600, last = 0;
  const load = async () => {
    last = performance.now();
    const data = await (await get(`${box.dataset.history}?seconds=${seconds}`)).json();
    draw(box, data.time, data.plots, true);
  };
  for (const button of $$("[data-seconds]")) {
    button.addEventListener("click", () => {
      seconds = Number(button.dataset.seconds);
      for (const other of $$("[data-seconds]")) other.setAttribute("aria-pressed", String(other === button));
      load();
    });
  }
  document.addEventListener("expdb:refresh", () => { if (performance.now() - last > 10_000) load(); });
  load();
}

function series() {
  const details = $("[data-series]");
  if (details) {
    let isLoaded = false;
    const load = async () => {
      if (isLoaded || !details.open) return;
      isLoaded = true;
      const data = await (await get(details.dataset.series)).json();
      draw($(".plots", details), data.step, data.plots, false);
      if (data.is_cut) details.append(make("p", { className: "note", textContent: `The first ${data.step.length.toLocaleString("en")} steps.` }));
    };
    details.addEventListener("toggle", load);
    load();
  }
  const plot = $("[data-plot]");
  if (plot) {
    const data = JSON.parse(plot.dataset.plot);
    draw(plot, data.x, data.plots, false);
  }
}

// -- parts that are loaded later -----------------------------------------------------------------

async function loadParts() {
  for (const part of $$("[data-src]")) {
    try {
      const text = await (await get(part.dataset.src)).text();
      part.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
    } catch (error) {
      part.replaceChildren(make("p", { className: "message", textContent: error.message }));
    }
  }
}

// Append the next steps of an episode when the end of the page comes into view.
function loadMore() {
  const observer = new IntersectionObserver(async (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      observer.unobserve(entry.target);
      const text = await (await get($("a", entry.target).href)).text();
      const steps = new DOMParser().parseFromString(text, "text/html").getElementById("steps");
      entry.target.replaceWith(...steps.childNodes);
      watch();
    }
  }, { rootMargin: "600px" });
  const watch = () => {
    for (const more of $$("[data-more]")) observer.observe(more);
    for (const details of $$("[data-tokens]:not([data-ready])")) {
      details.dataset.ready = "";
      details.addEventListener("toggle", () => { if (details.open) tokens(details); });
    }
  };
  watch();
}

// -- tokens --------------------------------------------------------------------------------------

const BLOCK = 500;  // tokens that the browser lays out together

async function tokens(details, first = 0, of = "output_ids", by = null) {
  const [place] = $$(".token-view", details);
  const view = place ?? details.appendChild(make("div", { className: "token-view" }));
  try {
    const data = await (await get(`${details.dataset.tokens}?first=${first}&of=${encodeURIComponent(of)}`)).json();
    show(view, details, data, by);
  } catch (error) {
    view.replaceChildren(make("p", { className: "message", textContent: error.message }));
  }
}

function show(view, details, data, by) {
  if (!data.count) return view.replaceChildren(make("p", { className: "note", textContent: "This step has no tokens." }));
  const names = Object.keys(data.colours);
  const colour = by && names.includes(by) ? by : (names.includes("logprobs") ? "logprobs" : names[0]);
  const ofSelect = select("Tokens", data.fields, data.of, (value) => tokens(details, 0, value, colour));
  const tools = make("div", { className: "tokens-tools" }, ofSelect);
  if (names.length) tools.append(select("Colour", names, colour, (value) => show(view, details, data, value)));
  const values = data.colours[colour] ?? [];
  const finite = values.filter((value) => value !== null);
  const low = Math.min(...finite), high = Math.max(...finite);
  if (finite.length) {
    tools.append(make("span", { className: "note" }, `${low} `, ...[0, 1, 2, 3, 4, 5, 6, 7].map(
      (level) => make("span", { className: `swatch c${level}` })), ` ${high}`));
  }
  const end = data.first + data.tokens.length;
  tools.append(make("span", { className: "note", textContent: `tokens ${data.first.toLocaleString("en")} to ${(end - 1).toLocaleString("en")} of ${data.count.toLocaleString("en")}` }));
  if (data.first > 0) tools.append(button("Previous", () => tokens(details, Math.max(0, data.first - 5000), data.of, colour)));
  if (end < data.count) tools.append(button("Next", () => tokens(details, end, data.of, colour)));
  const mask = data.colours.output_mask, versions = data.colours.versions;
  const blocks = [];
  for (let start = 0; start < data.tokens.length; start += BLOCK) {
    const block = make("div", { className: "token-block" });
    for (let index = start; index < Math.min(start + BLOCK, data.tokens.length); index++) {
      const value = values[index];
      const level = value === null || value === undefined || high === low ? 4 : Math.min(7, Math.floor(8 * (value - low) / (high - low)));
      const token = make("span", { className: `token c${level}`, textContent: data.tokens[index] });
      if (mask && !mask[index]) token.classList.add("off");
      if (versions && index > 0 && versions[index] !== versions[index - 1]) token.classList.add("edge");
      token.title = [`token ${data.first + index}`, ...names.map((name) => `${name} ${data.colours[name][index]}`)].join("\n");
      block.append(token, " ");
    }
    blocks.push(block);
  }
  view.replaceChildren(tools, ...blocks);
}

function select(label, names, chosen, change) {
  const box = make("select", {}, ...names.map((name) => make("option", { value: name, textContent: name, selected: name === chosen })));
  box.addEventListener("change", () => change(box.value));
  return make("label", {}, `${label} `, box);
}

function button(text, click) {
  const element = make("button", { type: "button", textContent: text });
  element.addEventListener("click", click);
  return element;
}

// -- keys ----------------------------------------------------------------------------------------

function keys() {
  let isAfterG = false;
  const move = (by) => {
    const rows = $$("[data-row]").filter((row) => row.offsetParent !== null);
    if (!rows.length) return;
    const before = rows.findIndex((row) => row.classList.contains("selected"));
    const next = rows[Math.max(0, Math.min(rows.length - 1, before + by))];
    rows[before]?.classList.remove("selected");
    next.classList.add("selected");
    const link = next.matches("tr") ? $("a", next) : next;
    link?.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  };
  const go = (url) => { if (url) location.href = url; };
  const links = () => Object.fromEntries($$("header nav a").map((link) => [link.textContent.trim()[0].toLowerCase(), link.href]));
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("#statement") && event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (isAfterG) {
      isAfterG = false;
      const all = links();
      const home = $("header nav a")?.href;
      return go({ o: home, e: all.e, r: all.r, l: all.l, s: all.s }[event.key]);
    }
    const actions = {
      j: () => move(1), k: () => move(-1), "/": () => ($("#q") ?? $("#statement"))?.focus(),
      n: () => go($("a[rel=next]")?.href), p: () => go($("a[rel=prev]")?.href),
      g: () => { isAfterG = true; setTimeout(() => { isAfterG = false; }, 1500); },
      "?": () => $("#keys").showModal(),
    };
    if (Object.hasOwn(actions, event.key)) { event.preventDefault(); actions[event.key](); }
  });
}

follow();
history();
series();
loadParts();
loadMore();
keys();

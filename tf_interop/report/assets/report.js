"use strict";
// Without this script the page shows everything below each other; with it one graph and one stage.

const graphs = [...document.querySelectorAll("section.graph")];
document.documentElement.classList.add("scripted");

function selectStage(graph, number, { scroll = true } = {}) {
  const chosen = String(number);
  for (const panel of graph.querySelectorAll("[data-panel]")) {
    panel.hidden = panel.dataset.panel !== chosen;
  }
  for (const each of graph.querySelectorAll("[data-stage]")) {
    const isChosen = each.dataset.stage === chosen;
    each.classList.toggle("chosen", isChosen);
    if (each.getAttribute("role") === "button") {
      each.setAttribute("aria-pressed", String(isChosen));
      each.setAttribute("tabindex", isChosen ? "0" : "-1");
    }
    if (isChosen && scroll) showInside(each);
  }
  graph.querySelector(".stepper select").value = chosen;
  graph.dataset.chosen = chosen;
}

// Scrolls the drawing, and never the page.
function showInside(element) {
  const box = element.closest(".scroll");
  const inner = element.getBoundingClientRect();
  const outer = box.getBoundingClientRect();
  if (inner.left < outer.left || inner.right > outer.right) {
    box.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
  }
}

function step(graph, by) {
  const options = [...graph.querySelectorAll(".stepper option")].map((each) => each.value);
  const place = options.indexOf(graph.dataset.chosen) + by;
  if (place >= 0 && place < options.length) selectStage(graph, options[place]);
}

function showGraph(hash) {
  const chosen = graphs.find((each) => `#${each.id}` === hash) ?? graphs[0];
  for (const each of graphs) each.hidden = each !== chosen;
  for (const link of document.querySelectorAll("nav a")) {
    link.toggleAttribute("aria-current", link.hash === `#${chosen?.id}`);
  }
}

for (const graph of graphs) {
  graph.addEventListener("click", (event) => {
    const said = event.target.closest("[data-says]");
    if (said) graph.querySelector(".said").textContent = said.dataset.says;
    const staged = event.target.closest("[data-stage]");
    if (staged) selectStage(graph, staged.dataset.stage);
  });
  graph.addEventListener("keydown", (event) => {
    const staged = event.target.closest("[role=button][data-stage]");
    if (!staged) return;
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) {
      step(graph, by);
      graph.querySelector("[role=button].chosen").focus({ preventScroll: true });
    } else if (event.key === "Enter" || event.key === " ") {
      selectStage(graph, staged.dataset.stage);
    } else {
      return;
    }
    event.preventDefault();
  });
  for (const button of graph.querySelectorAll("button.fit")) {
    button.addEventListener("click", () => {
      const fits = button.closest(".panel").classList.toggle("fitted");
      button.setAttribute("aria-pressed", String(fits));
    });
  }
  const stepper = graph.querySelector(".stepper");
  if (stepper) {
    stepper.hidden = false;
    stepper.querySelector(".previous").addEventListener("click", () => step(graph, -1));
    stepper.querySelector(".next").addEventListener("click", () => step(graph, 1));
    stepper.querySelector("select").addEventListener("change", (event) => {
      selectStage(graph, event.target.value);
    });
    selectStage(graph, stepper.dataset.first);
  }
}
window.addEventListener("hashchange", () => showGraph(location.hash));
showGraph(location.hash);

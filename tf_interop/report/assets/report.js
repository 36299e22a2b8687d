// A click on a heading sorts a long list, and a field filters it. Without this script lists keep the plan's order.
for (const table of document.querySelectorAll("table.listing")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  if (rows.length < 10) continue;
  const field = document.createElement("input");
  Object.assign(field, { type: "search", placeholder: `Filter ${rows.length} rows`, ariaLabel: "Filter" });
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  table.parentElement.before(field);
  const heads = [...table.tHead.rows[0].cells];
  for (const head of heads) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      for (const each of heads) each.ariaSort = null;
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      const text = (row) => row.cells[head.cellIndex].textContent.trim();
      const compare = (a, b) => sign * text(a).localeCompare(text(b), undefined, { numeric: true });
      body.append(...[...rows].sort(compare));
    });
  }
}

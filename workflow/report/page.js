// Shows where the number that was clicked comes from: what `reproquant explain` prints for it, put together from the
// page's list of numbers and its pieces, which hold each file and each request once.
(() => {
  const pieces = JSON.parse(document.getElementById("pieces").textContent);
  const panel = document.getElementById("panel");
  const list = panel.querySelector("dl");
  let opener = null;

  // A link names its number in its fragment, a mark of a plot in an attribute.
  const idOf = (mark) => mark.dataset.number ?? mark.getAttribute("href").slice("#number:".length);

  // A step of a lineage has a title, facts (pairs of texts) and causes (steps); `seen` are the files so far.

  function number(id, seen) {
    const row = document.getElementById(`number:${id}`);
    const [value, source] = [...row.cells].slice(1).map((cell) => cell.textContent.trim());
    const { path, sha256 } = row.closest("tbody").dataset;
    const title = `${id} = ${value}`;
    if (!path) {
      const inputs = [...row.querySelectorAll("a")].map(idOf);
      return { title, facts: [["formula", row.dataset.formula]], causes: inputs.map((input) => number(input, seen)) };
    }
    const facts = [["file", path], ["pointer", source], ["sha256", sha256]];
    return { title, facts, causes: [...rounds(path, source), ...file(path, seen)] };
  }

  function rounds(path, pointer) {
    const [, top, place, metric, figure, which] = pointer.split("/");
    const level = top === "levels" && pieces.measured[path]?.levels[place];
    const found = level && level.metrics[metric];
    if (!found) return [];
    const behind = figure === "rounds" ? [which] : found.behind[figure];
    return behind.map((at) => {
      const [title, requests] = level.rounds[at];
      return {
        title: `${metric} = ${found.values[at]} in ${title}`,
        facts: [["pointer", `/levels/${place}/${metric}/rounds/${at}`]],
        causes: requests.map((request) => requestOf(path, request)),
      };
    });
  }

  function requestOf(path, place) {
    const { places, columns } = pieces.measured[path];
    const at = places.indexOf(place);
    const cell = (column) => (Array.isArray(column) ? column[at] : column);
    const facts = [["pointer", `/requests/${place}`]];
    for (const [name, column] of columns) {
      const found = cell(column);
      const isObject = typeof found === "object";
      const text = isObject ? object(Object.entries(column).map(([key, inner]) => [key, cell(inner)])) : `${found}`;
      if (text) facts.push([name, text]);
    }
    return { title: `request ${place}`, facts, causes: [] };
  }

  function object(pairs) {
    const filled = pairs.filter(([, text]) => text);
    return filled.length ? `{${filled.map(([key, text]) => `${JSON.stringify(key)}: ${text}`).join(", ")}}` : "";
  }

  // None for a file that the report itself has written: it has no piece.
  function file(name, seen) {
    const piece = pieces.files[name];
    if (!piece) return [];
    if (seen.has(name)) return [{ title: `${name} (see above)`, facts: [], causes: [] }];
    seen.add(name);
    const facts = Object.entries(piece.facts).map(([fact, place]) => [fact, pieces.values[place]]);
    return [{ title: name, facts, causes: piece.from.flatMap((input) => file(input, seen)) }];
  }

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function tree({ title, facts, causes }) {
    if (!facts.length && !causes.length) return element("p", { className: "node" }, title);
    const lines = facts.map(([name, text]) => element("li", {}, element("span", {}, name), ` ${text}`));
    const parts = [element("summary", {}, title), element("ul", {}, ...lines), ...causes.map(tree)];
    return element("details", { className: "node" }, ...parts);
  }

  function line(label, ...content) {
    if (content.length) list.append(element("dt", {}, label), element("dd", {}, ...content));
  }

  function open(id) {
    const row = document.getElementById(`number:${id}`);
    if (!row) return;
    const step = number(id, new Set());
    panel.querySelector(".panel-value").textContent = row.cells[1].textContent;
    list.replaceChildren();
    line("id", id);
    const path = row.closest("tbody").dataset.path;
    if (path) {
      for (const [name, text] of step.facts) line(name, text);
      const command = document.querySelector(`[data-command="${CSS.escape(path)}"]`);
      if (command) line("server", command.content.textContent);
      const made = step.causes.filter(({ title }) => title in pieces.files);
      line("measured as", ...step.causes.filter((cause) => !made.includes(cause)).map(tree));
      line("made from", ...made.map(tree));
    } else {
      line("computed as", ...row.cells[2].cloneNode(true).childNodes);
      line("from", ...step.causes.map(tree));
    }
    panel.hidden = false;
    panel.querySelector("button").focus();
  }

  function close() {
    panel.hidden = true;
    opener?.focus?.();
  }

  function follow(event) {
    const mark = event.target.closest("[data-number], .number");
    if (!mark) return;
    event.preventDefault();
    if (!panel.contains(mark)) opener = mark;
    open(idOf(mark));
  }

  document.addEventListener("click", follow);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" || event.key === " ") follow(event);
  });
  panel.querySelector("button").addEventListener("click", close);
})();

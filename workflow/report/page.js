// Shows the source of the number that was clicked. All it says stands in the page's lists of numbers and files.
(() => {
  const panel = document.getElementById("panel");
  const list = panel.querySelector("dl");
  let opener = null;

  const find = (attribute, value) =>
    [...document.querySelectorAll(`[${attribute}]`)].find((element) => element.getAttribute(attribute) === value);

  function line(label, content) {
    const term = document.createElement("dt");
    const words = document.createElement("dd");
    term.textContent = label;
    words.append(content);
    list.append(term, words);
  }

  function open(id) {
    const row = document.getElementById(`number:${id}`);
    if (!row) return;
    list.replaceChildren();
    panel.querySelector(".panel-value").textContent = row.querySelector(".value").textContent;
    line("id", id);
    const path = row.querySelector(".path")?.textContent;
    if (path) {
      line("file", path);
      line("sha256", find("data-path", path).querySelector(".sha256").textContent);
      line("pointer", row.querySelector(".pointer").textContent);
      const command = find("data-command", path);
      if (command) line("server", command.content.textContent);
      const requests = find("data-requests", id);
      if (requests) line("measured as", requests.content.cloneNode(true));
      const chain = find("data-chain", path);
      if (chain) line("made from", chain.content.cloneNode(true));
    } else {
      const source = row.querySelector(".source").cloneNode(true);
      line("computed as", Object.assign(document.createElement("span"), { innerHTML: source.innerHTML }));
    }
    panel.hidden = false;
    panel.querySelector("button").focus();
  }

  function close() {
    panel.hidden = true;
    opener?.focus?.();
  }

  function follow(event) {
    const mark = event.target.closest("[data-number]");
    if (!mark) return;
    event.preventDefault();
    if (!panel.contains(mark)) opener = mark;
    open(mark.dataset.number);
  }

  document.addEventListener("click", follow);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" || event.key === " ") follow(event);
  });
  panel.querySelector("button").addEventListener("click", close);
})();

// The copy button of a session takes its commands alone: neither prompts nor outputs.

// The commands of a text with "$ " before each; "" if it has none. A command goes on behind a backslash, and to the end
// of a here-document.
function commands(text) {
  const found = []
  let end = "", goes = false
  for (const line of text.split("\n")) {
    if (end || goes) found.push(line)
    else if (line.startsWith("$ ")) found.push(line.slice(2))
    else continue
    if (end) {
      if (line === end) end = ""
      continue
    }
    goes = line.endsWith("\\")
    end = line.match(/<<-?\s*['"]?(\w+)/)?.[1] ?? ""
  }
  return found.join("\n")
}

if (typeof document !== "undefined")
  document.addEventListener("click", event => {
    const button = event.target.closest?.("[data-clipboard-target]")
    const code = button && document.querySelector(button.dataset.clipboardTarget)
    const text = code ? commands(code.textContent) : ""
    if (text) button.dataset.clipboardText = text // which the theme prefers to the text of the target
  }, true)

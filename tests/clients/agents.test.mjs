// Strata through `@openai/agents`, as it comes from the registry: over Responses, its default, and over chats.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run, setTracingDisabled, tool } from '@openai/agents';
import { clientOf, model, person, urls } from './cluster.mjs';

setTracingDisabled(true);

for (const [at, url] of urls.entries()) {
  const client = clientOf(url);
  for (const [api, its] of [
    ['responses', new OpenAIResponsesModel(client, model)],
    ['chats', new OpenAIChatCompletionsModel(client, model)],
  ]) {
    const name = (what) => `agents over ${api}, node ${at}: ${what}`;
    const saved = [];
    const savePerson = tool({
      name: 'save_person',
      description: 'Saves a person.',
      parameters: person,
      execute: async (input) => {
        saved.push(input);
        return 'saved';
      },
    });
    // The schema ends what this model writes; a response that is cut is an error to this client.
    const writer = new Agent({
      name: 'writer',
      model: its,
      outputType: person,
      modelSettings: { maxTokens: 300, temperature: 0 },
    });
    // The tool is required in the first turn only: the agent sees to that.
    const clerk = writer.clone({
      name: 'clerk',
      instructions: 'Save people.',
      tools: [savePerson],
      modelSettings: { ...writer.modelSettings, toolChoice: 'required', parallelToolCalls: false },
    });

    test(name('writes what a schema says, whole and streamed'), async () => {
      person.parse((await run(writer, 'Who is it?')).finalOutput);
      const streamed = await run(writer, 'Who is it?', { stream: true });
      let text = '';
      for await (const piece of streamed.toTextStream()) text += piece;
      await streamed.completed;
      assert.deepEqual(JSON.parse(text), streamed.finalOutput);
    });

    test(name('calls a tool and goes on with its result, whole and streamed'), async () => {
      person.parse((await run(clerk, 'Save Ann, 9.', { maxTurns: 3 })).finalOutput);
      assert.equal(saved.length, 1);
      person.parse(saved[0]);
      const streamed = await run(clerk, 'Save Ann, 9.', { maxTurns: 3, stream: true });
      await streamed.completed;
      person.parse(streamed.finalOutput);
      assert.equal(saved.length, 2);
      person.parse(saved[1]);
    });
  }
}

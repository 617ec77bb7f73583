// Strata through LangChain's models for four APIs, as they come from the registry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ChatAnthropic } from '@langchain/anthropic';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOllama, OllamaEmbeddings } from '@langchain/ollama';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { forcing, model, person, urls } from './cluster.mjs';

const savePerson = tool(async () => 'saved', {
  name: 'save_person',
  description: 'Saves a person.',
  schema: person,
});

for (const [at, url] of urls.entries()) {
  const openai = (more) => (tokens) =>
    new ChatOpenAI({
      model,
      apiKey: 'unused',
      maxTokens: tokens,
      temperature: 0,
      maxRetries: 0,
      configuration: { baseURL: `${url}/v1` },
      ...more,
    });
  const models = {
    chats: { of: openai({}), forced: { tool_choice: 'required', parallel_tool_calls: false } },
    responses: {
      of: openai({ useResponsesApi: true }),
      forced: { tool_choice: { type: 'function', function: { name: 'save_person' } }, parallel_tool_calls: false },
    },
    messages: {
      of: (tokens) =>
        new ChatAnthropic({
          model,
          apiKey: 'unused',
          maxTokens: tokens,
          temperature: 0,
          maxRetries: 0,
          anthropicApiUrl: url,
        }),
      forced: { tool_choice: { type: 'any', disable_parallel_tool_use: true } },
      // It leaves bounds and words out of a jsonSchema, and says them to the model.
      method: 'functionCalling',
    },
    ollama: {
      of: (tokens, more = {}) =>
        new ChatOllama({ model, baseUrl: url, numPredict: tokens, temperature: 0, maxRetries: 0, ...more }),
      forced: {},
      settings: { fetch: forcing },
    },
  };

  for (const [api, { of, forced, settings, method = 'jsonSchema' }] of Object.entries(models)) {
    const name = (what) => `langchain over ${api}, node ${at}: ${what}`;

    test(name('writes a text, whole and streamed'), async () => {
      const whole = await of(24).invoke('The old captain');
      assert.equal(whole.usage_metadata.output_tokens, 24);
      assert.ok(whole.text.length > 24);
      let text = '';
      let pieces = 0;
      for await (const piece of await of(24).stream('The old captain')) {
        text += piece.text;
        ++pieces;
      }
      assert.equal(text, whole.text);
      assert.ok(pieces > 10);
    });

    test(name('calls a tool and reads its result'), async () => {
      const question = new HumanMessage('Save Ann, 9.');
      const answer = await of(300, settings).bindTools([savePerson], forced).invoke([question]);
      assert.equal(answer.tool_calls.length, 1);
      const [call] = answer.tool_calls;
      assert.equal(call.name, 'save_person');
      person.parse(call.args);
      const result = new ToolMessage({ content: 'saved', tool_call_id: call.id, name: call.name });
      const after = await of(24).bindTools([savePerson]).invoke([question, answer, result]);
      assert.equal(after.usage_metadata.output_tokens, 24);
    });

    test(name('writes what a schema says'), async () => {
      const structured = of(300).withStructuredOutput(person, { method, name: 'save_person' });
      person.parse(await structured.invoke('Ann, 9.'));
    });
  }

  test(`langchain, node ${at}: embeds texts`, async () => {
    const configuration = { baseURL: `${url}/v1` };
    for (const embeddings of [
      new OpenAIEmbeddings({ model, apiKey: 'unused', maxRetries: 0, configuration }),
      new OllamaEmbeddings({ model, baseUrl: url }),
    ]) {
      const vectors = await embeddings.embedDocuments(['The sea', 'A ship']);
      assert.equal(vectors.length, 2);
      assert.ok(vectors.every((vector) => Math.abs(Math.hypot(...vector) - 1) < 1e-5));
    }
  });
}
